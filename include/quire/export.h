// QUIRE_API marks the classes and functions that the shared library exports.
// Everything else is hidden in it.
#pragma once

#define QUIRE_API __attribute__((visibility("default")))
