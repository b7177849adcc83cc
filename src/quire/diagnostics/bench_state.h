// Times of operations on KV that is there: fork, restore from a file, compose. Medians of a few
// runs behind one that is not counted, in seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "quire/diagnostics/peaks.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/types.h"

namespace quire::diagnostics {

using TakeIds = std::function<std::vector<TokenId>(std::int32_t count)>;  // new ones each time

inline constexpr std::int32_t kComposedQueryTokens = 32;  // tokens of time_compose's query

// Times a second state over the KV of a sequence, and dropping it.
[[nodiscard]] Result<double> time_fork(runtime::Runtime& runtime, const std::vector<TokenId>& ids);
// Times of a saved sequence whose file is in the page cache.
struct RestoreTimes {
  double seconds = 0;       // reading and verifying it
  double path_seconds = 0;  // the least that the way of its bytes takes (Peaks::path_seconds)
};
// Times a restore. The file is in the system's folder for temporary files and goes when it is done.
[[nodiscard]] Result<RestoreTimes> time_restore(runtime::Runtime& runtime,
                                                const std::vector<TokenId>& ids,
                                                const Peaks& peaks);
// Returns the seconds of setting up a request behind 8 chunks of `tokens` tokens in all and a
// query. Their KV is there, and the sequence then waits to be computed. The chunks are deleted
// afterwards.
[[nodiscard]] Result<double> time_compose(runtime::Runtime& runtime, std::int32_t tokens,
                                          const TakeIds& take);

}  // namespace quire::diagnostics
