"""Pages: a session, dispatch table, dataset, model card or kernel as one HTML file that works offline"""
