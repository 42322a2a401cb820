"""The layer: gates, backends, the module, conversion."""
