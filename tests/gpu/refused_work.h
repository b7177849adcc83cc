// Makes the driver refuse work: kernels, copies, graphs, waits. The program is linked so that these
// calls of CUDA's runtime come here first (tests/CMakeLists.txt).
#pragma once

#include <cstdint>

namespace quire {

// Lets one of the calls from now on fail, on any thread: the one with this number; a negative
// number: none. Returns what is left of the number before, negative when that one has failed.
std::int64_t refuse_work(std::int64_t number);

}  // namespace quire
