"""Other machines: commands on hosts by SSH, metrics for Prometheus and OpenTelemetry.

In: results. Out: answers and requests over the network. Must not read a target.
"""
