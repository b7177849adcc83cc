// The one translation unit of all programs that compiles Boost.JSON.
#include <boost/json/src.hpp>
