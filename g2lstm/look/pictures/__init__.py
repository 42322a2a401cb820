"""Pictures of gates, drawn once for files and report; readable in grey and by colour-blind people."""
