// The version of these headers, for #if. version() of tools.h is that of the library that runs.
#pragma once

#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 1
#define QUIRE_VERSION_PATCH 0
