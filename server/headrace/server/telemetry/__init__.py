"""What an operator sees: logs, Prometheus metrics and OpenTelemetry spans."""
