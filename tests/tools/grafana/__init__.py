"""The Grafana dashboards as a declaration, from which the files in ``deploy/grafana/dashboards/`` are made."""
