#include "quire/engine/turn_marks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/engine/model_bundle.h"
#include "quire/kv/states.h"
#include "quire/text/chat_template.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

using base::Json;
using Ids = std::vector<TokenId>;

Json message(std::string_view role, std::string_view content) {
  return Json::object({{"role", role}, {"content", content}});
}

// Returns the ids of a chat of a question, an answer and `last`, if that is not empty. No ids where
// the template cannot be rendered.
Ids chat_ids(const TextBundle& text, std::string_view last, bool opens,
             Json variables = Json::object()) {
  Json messages = Json::array(message("user", "a"), message("assistant", "b"));
  if (!last.empty()) {
    messages.push(message("user", last));
  }
  variables.set("messages", std::move(messages));
  variables.set("add_generation_prompt", opens);
  text::RenderOptions options;
  text::add_model_variables(text.tokenizer, variables, options);
  if (!text.chat_template) {
    return {};
  }
  const auto rendered = text.chat_template->render(variables, options);
  if (!rendered.ok()) {
    return {};
  }
  auto ids = text::encode_prompt(text.tokenizer, *rendered);
  return ids.ok() ? std::move(ids).value() : Ids();
}

std::size_t common_prefix(const Ids& a, const Ids& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// Returns the ids that `longer` has behind what both have, up to `end`.
Ids behind(const Ids& shorter, const Ids& longer, std::size_t end) {
  const std::size_t begin = common_prefix(shorter, longer);
  return begin < end ? Ids(longer.begin() + static_cast<std::ptrdiff_t>(begin),
                           longer.begin() + static_cast<std::ptrdiff_t>(end))
                     : Ids();
}

}  // namespace

TurnMarks::TurnMarks(const TextBundle& text) {
  if (!text.chat_template) {
    return;
  }
  const Ids asked = chat_ids(text, "c", false);
  const Ids other = chat_ids(text, "d", false);
  user_ = behind(chat_ids(text, "", false), asked, common_prefix(asked, other));
  const Ids opened = chat_ids(text, "c", true);
  const Ids otherwise = chat_ids(text, "c", true, Json::object({{"enable_thinking", false}}));
  answer_ = behind(asked, opened, common_prefix(opened, otherwise));
}

std::vector<kv::PointMark> TurnMarks::marks(std::span<const TokenId> ids) const {
  std::vector<kv::PointMark> found;
  if (user_.empty()) {
    return found;
  }
  const auto user = std::ranges::find_end(ids, user_);
  if (user.empty()) {
    return found;
  }
  const auto add = [&](auto place) {
    if (place != ids.begin()) {
      found.push_back({.tokens = static_cast<std::int32_t>(place - ids.begin())});
    }
  };
  add(user.begin());
  // Within the last message, which is edited most. Behind a long one the points of each prompt at
  // growing distances are near enough.
  constexpr std::int64_t kMostWithin = 8;
  for (std::int64_t i = 1; i <= kMostWithin; ++i) {
    const std::int64_t place = std::ssize(ids) - i * kv::kPointDistance;
    if (place <= user.begin() - ids.begin()) {
      break;
    }
    found.push_back({.tokens = static_cast<std::int32_t>(place)});
  }
  if (!answer_.empty()) {
    const auto answer =
        std::ranges::find_end(user.end(), ids.end(), answer_.begin(), answer_.end());
    if (!answer.empty()) {
      add(answer.begin());
    }
  }
  return found;
}

}  // namespace quire::engine
