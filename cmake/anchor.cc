// Gives the shared library a source of its own; everything comes from the module archives.
