# quire_boost_json: Boost.JSON, compiled once for all programs. The library has one of its own, which it
# keeps to itself.
include_guard(GLOBAL)
add_library(quire_boost_json STATIC ${CMAKE_CURRENT_LIST_DIR}/boost_json.cc)
target_link_libraries(quire_boost_json PRIVATE quire_flags PUBLIC Boost::headers)
