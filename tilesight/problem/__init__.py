"""Problems: workloads, operators, kernel templates, search spaces, configs and candidates."""
