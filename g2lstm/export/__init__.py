"""Models for other runtimes: ONNX (the files here), C (`c/`) and HTML (`html/`)."""
