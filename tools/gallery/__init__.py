"""The pictures of docs/gallery.md: what every scheme cuts, round by round."""
