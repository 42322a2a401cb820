"""The layers: gates, backends, the modules, conversion, recording."""
