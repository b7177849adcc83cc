#include "quire/text/post_processor.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/json_section.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

Result<TokenId> checked_id(const base::json::value& value, const Vocabulary& vocabulary) {
  const std::int64_t* id = value.if_int64();
  if (id == nullptr || *id < 0 || *id >= vocabulary.end_id()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("post_processor: ", base::json::serialize(value),
                          " is not an id of the vocabulary of ", vocabulary.end_id(), " ids")};
  }
  return static_cast<TokenId>(*id);
}

// The "ids" of one entry of "special_tokens".
Status append_special(const base::json::object& section, const std::string& name,
                      const Vocabulary& vocabulary, PostTemplate& out) {
  const base::json::value* table = base::find(section, "special_tokens");
  const base::json::value* entry =
      table != nullptr && table->is_object() ? base::find(table->get_object(), name) : nullptr;
  if (entry == nullptr || !entry->is_object()) {
    return {ErrorCode::kInvalidArgument, base::str_cat("post_processor: special token ",
                                                       base::quoted(name), " is not described")};
  }
  QUIRE_TRY(const base::json::array* ids, require_array(entry->get_object(), "ids"));
  for (const base::json::value& value : *ids) {
    QUIRE_TRY(const TokenId id, checked_id(value, vocabulary));
    out.emplace_back(id);
  }
  return {};
}

// One piece of "single": {"SpecialToken": {"id": ...}} or {"Sequence": {"id": "A"}}.
Status append_piece(const base::json::object& section, const base::json::object& piece,
                    const Vocabulary& vocabulary, PostTemplate& out) {
  const base::json::value* special = base::find(piece, "SpecialToken");
  if (special != nullptr && special->is_object()) {
    QUIRE_TRY(const std::string name, require_string(special->get_object(), "id"));
    return append_special(section, name, vocabulary, out);
  }
  const base::json::value* sequence = base::find(piece, "Sequence");
  if (sequence == nullptr || !sequence->is_object()) {
    return {ErrorCode::kInvalidArgument,
            "post_processor: a template piece must be SpecialToken or Sequence"};
  }
  QUIRE_TRY(const std::string which, require_string(sequence->get_object(), "id"));
  if (which != "A") {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("post_processor: sequence ", base::quoted(which),
                          " in the template for one text")};
  }
  out.emplace_back(std::nullopt);
  return {};
}

Result<PostTemplate> template_processing(const base::json::object& section,
                                         const Vocabulary& vocabulary) {
  QUIRE_TRY(const base::json::array* single, require_array(section, "single"));
  PostTemplate pattern;
  for (const base::json::value& piece : *single) {
    const base::json::object* object = piece.if_object();
    QUIRE_TRY_STATUS(append_piece(section, object != nullptr ? *object : base::json::object(),
                                  vocabulary, pattern));
  }
  return pattern;
}

// "cls" and "sep" are pairs of token and id.
Result<PostTemplate> cls_and_sep(const base::json::object& section, const Vocabulary& vocabulary) {
  PostTemplate pattern(3);
  for (const auto& [key, place] : {std::pair("cls", 0), std::pair("sep", 2)}) {
    QUIRE_TRY(const base::json::array* pair, require_array(section, key));
    if (pair->size() != 2) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("post_processor: ", key, " must be a token and its id")};
    }
    QUIRE_TRY(pattern[static_cast<std::size_t>(place)], checked_id((*pair)[1], vocabulary));
  }
  return pattern;
}

}  // namespace

Result<PostProcessor> PostProcessor::from_json(const boost::json::value& section,
                                               const Vocabulary& vocabulary) {
  PostProcessor made;
  const auto add = [&](const TypedSection& each) -> Status {
    if (each.type == "ByteLevel") {
      return {};  // it only moves offsets
    }
    const bool is_template = each.type == "TemplateProcessing";
    if (!is_template && each.type != "BertProcessing" && each.type != "RobertaProcessing") {
      return unknown_type("post_processor", each.type);
    }
    QUIRE_TRY(PostTemplate pattern, is_template ? template_processing(*each.object, vocabulary)
                                                : cls_and_sep(*each.object, vocabulary));
    made.templates_.push_back(std::move(pattern));
    return {};
  };
  QUIRE_TRY_STATUS(for_each_section(section, "post_processor", "processors", add));
  return made;
}

std::vector<TokenId> PostProcessor::apply(std::vector<TokenId> ids, bool add_special_tokens) const {
  if (!add_special_tokens) {
    return ids;
  }
  for (const PostTemplate& pattern : templates_) {
    std::vector<TokenId> around;
    around.reserve(ids.size() + pattern.size());
    for (const std::optional<TokenId>& piece : pattern) {
      if (piece) {
        around.push_back(*piece);
      } else {
        around.insert(around.end(), ids.begin(), ids.end());
      }
    }
    ids = std::move(around);
  }
  return ids;
}

}  // namespace quire::text
