//! A finished study as a table and as data files.
