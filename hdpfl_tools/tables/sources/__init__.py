"""Sources of a site's table, as columns of texts."""
