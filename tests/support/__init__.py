"""Stand-ins for S3 and for the driver: what the unit tests run plans on."""
