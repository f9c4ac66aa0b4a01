"""Tables and figures as all reports make them. May import only the files beside the rooms."""
