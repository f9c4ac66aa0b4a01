"""Tables and figures as all reports make them."""
