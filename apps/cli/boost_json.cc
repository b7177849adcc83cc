// The one translation unit of this program that compiles Boost.JSON.
#include <boost/json/src.hpp>
