"""A server on loopback that answers as S3 does, each request after a set latency, and logs them all."""
