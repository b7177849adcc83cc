// Version of these headers, for #if.
// version() of tools.h returns the version of the library that runs, which may be another one.
// MAJOR.MINOR.PATCH, three integers.
#pragma once

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0
