# QUIRE_VERSION, which include/quire/version.h says and nothing else.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../include/quire/version.h lines REGEX "^#define QUIRE_VERSION_")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" QUIRE_VERSION "${lines}")
