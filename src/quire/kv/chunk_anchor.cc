#include "quire/kv/chunk_anchor.h"

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_types.h"
#include "quire/result.h"

namespace quire::kv {

bool stands_within(std::string_view anchor, std::span<const std::string_view> before) {
  const std::vector<std::string_view> ids = anchor_ids(anchor);
  if (ids.empty() || before.empty() || ids.front() != before.front()) {
    return ids.empty() && before.empty();
  }
  auto next = ids.begin();
  for (const std::string_view id : before) {
    next += next != ids.end() && *next == id ? 1 : 0;
  }
  return next == ids.end();
}

Status check_in_anchor(const NewChunk& chunk, std::span<const std::string_view> before) {
  std::string wrong;
  if (chunk.type == ChunkType::kQuery) {
    wrong = "the anchor is a query chunk; give a system chunk, and contexts behind it";
  } else if (chunk.type == ChunkType::kSystemPrompt && !before.empty()) {
    wrong = "the anchor has a system chunk behind another chunk; it stands first";
  } else if (chunk.type == ChunkType::kContext && !stands_within(chunk.anchor, before)) {
    wrong = base::str_cat("the anchor has a context chunk that was registered behind ",
                          chunk.anchor.empty() ? "no chunk" : "others",
                          "; give a list of chunks, each behind those that it was registered "
                          "behind");
  }
  return wrong.empty() ? Status()
                       : Error{.code = ErrorCode::kInvalidComposition,
                               .message = std::move(wrong),
                               .chunk_id = chunk.id};
}

}  // namespace quire::kv
