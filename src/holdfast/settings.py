"""Where the environment and the configuration file become values. Nobody else reads either."""
