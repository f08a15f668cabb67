"""Advised settings beside a grid."""
