"""A server on loopback that answers as S3 and DynamoDB do, each request after a set latency, and logs them all."""
