"""Pictures of docs/gallery.md: the cuts of every scheme, round by round."""
