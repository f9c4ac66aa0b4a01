"""The tables and pictures that commands show. May import theory and below."""
