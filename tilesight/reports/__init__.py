"""Reports: the text of results, as the command line prints it, `print` shows it and notebooks display it."""
