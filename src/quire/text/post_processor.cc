#include "quire/text/post_processor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "quire/base/json.h"
#include "quire/text/json_section.h"

namespace quire::text {
namespace {

constexpr std::int64_t kMaxLength = std::int64_t{1} << 24;  // of truncation and padding

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

Result<PostTemplate> template_processing(const base::json::object& section,
                                         const Vocabulary& vocabulary) {
  QUIRE_TRY(const base::json::array* single, require_array(section, "single"));
  PostTemplate pattern;
  for (const base::json::value& piece : *single) {
    const base::json::object* object = piece.if_object();
    const base::json::value* special =
        object != nullptr ? base::find(*object, "SpecialToken") : nullptr;
    const base::json::value* sequence =
        object != nullptr ? base::find(*object, "Sequence") : nullptr;
    if (special != nullptr && special->is_object()) {
      QUIRE_TRY(const std::string name, require_string(special->get_object(), "id"));
      QUIRE_TRY_STATUS(append_special(section, name, vocabulary, pattern));
      continue;
    }
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
    pattern.emplace_back(std::nullopt);
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

Result<std::int64_t> get_length(const base::json::object& object, std::string_view key) {
  QUIRE_TRY(const std::int64_t length, base::get_int(object, key, 0));
  if (length < 0 || length > kMaxLength) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat(key, " ", length, " is outside 0 to ", kMaxLength)};
  }
  return length;
}

Result<bool> is_left(const base::json::object& object) {
  QUIRE_TRY(const std::string direction, base::get_string(object, "direction", "Right"));
  if (direction != "Left" && direction != "Right") {
    return unknown_type("direction", direction);
  }
  return direction == "Left";
}

Result<Truncation> truncation_from_json(const base::json::object& object) {
  Truncation truncation;
  QUIRE_TRY(const std::int64_t max_length, get_length(object, "max_length"));
  truncation.max_length = static_cast<std::size_t>(max_length);
  QUIRE_TRY(truncation.from_left, is_left(object));
  QUIRE_TRY(const std::string strategy, base::get_string(object, "strategy", "LongestFirst"));
  if (strategy != "LongestFirst" && strategy != "OnlyFirst") {
    return unknown_type("truncation strategy", strategy);
  }
  return truncation;
}

Result<Padding> padding_from_json(const base::json::object& object, const Vocabulary& vocabulary) {
  Padding padding;
  QUIRE_TRY(padding.on_left, is_left(object));
  QUIRE_TRY(const std::int64_t multiple, get_length(object, "pad_to_multiple_of"));
  padding.multiple_of = static_cast<std::size_t>(multiple);
  const base::json::value* strategy = base::find(object, "strategy");
  if (strategy != nullptr && strategy->is_object()) {  // {"Fixed": n}
    QUIRE_TRY(const std::int64_t length, get_length(strategy->get_object(), "Fixed"));
    padding.fixed_length = static_cast<std::size_t>(length);
  }
  const base::json::value* pad = base::find(object, "pad_id");
  QUIRE_TRY(padding.pad, checked_id(pad != nullptr ? *pad : base::json::value(0), vocabulary));
  return padding;
}

// A member that must be an object when it is there.
Result<const base::json::object*> optional_object(const base::json::object& root,
                                                  std::string_view key) {
  const base::json::value* value = base::find(root, key);
  if (value != nullptr && !value->is_object()) {
    return {ErrorCode::kInvalidArgument, base::str_cat(key, " must be an object or null")};
  }
  return value != nullptr ? &value->get_object() : nullptr;
}

}  // namespace

Result<PostProcessor> PostProcessor::from_json(const boost::json::object& root,
                                               const Vocabulary& vocabulary) {
  PostProcessor made;
  const base::json::value* section = base::find(root, "post_processor");
  QUIRE_TRY_STATUS(for_each_section(
      section != nullptr ? *section : base::json::value(), "post_processor", "processors",
      [&](const TypedSection& each) -> Status {
        if (each.type == "TemplateProcessing") {
          QUIRE_TRY(PostTemplate pattern, template_processing(*each.object, vocabulary));
          made.templates_.push_back(std::move(pattern));
        } else if (each.type == "BertProcessing" || each.type == "RobertaProcessing") {
          QUIRE_TRY(PostTemplate pattern, cls_and_sep(*each.object, vocabulary));
          made.templates_.push_back(std::move(pattern));
        } else if (each.type != "ByteLevel") {  // which only moves offsets
          return unknown_type("post_processor", each.type);
        }
        return {};
      }));
  QUIRE_TRY(const base::json::object* truncation, optional_object(root, "truncation"));
  if (truncation != nullptr) {
    QUIRE_TRY(made.truncation_, truncation_from_json(*truncation));
  }
  QUIRE_TRY(const base::json::object* padding, optional_object(root, "padding"));
  if (padding != nullptr) {
    QUIRE_TRY(made.padding_, padding_from_json(*padding, vocabulary));
  }
  return made;
}

std::vector<TokenId> PostProcessor::apply(std::vector<TokenId> ids, bool add_special_tokens) const {
  truncate(ids, add_special_tokens);
  if (add_special_tokens) {
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
  }
  pad(ids);
  return ids;
}

void PostProcessor::truncate(std::vector<TokenId>& ids, bool add_special_tokens) const {
  if (!truncation_) {
    return;
  }
  std::size_t added = 0;
  for (const PostTemplate& pattern : templates_) {
    added += static_cast<std::size_t>(std::count_if(
        pattern.begin(), pattern.end(), [](const auto& piece) { return piece.has_value(); }));
  }
  const std::size_t reserved = add_special_tokens ? added : 0;
  const std::size_t room =
      truncation_->max_length > reserved ? truncation_->max_length - reserved : 0;
  if (ids.size() > room) {
    const auto surplus = static_cast<std::ptrdiff_t>(ids.size() - room);
    ids.erase(truncation_->from_left ? ids.begin() : ids.end() - surplus,
              truncation_->from_left ? ids.begin() + surplus : ids.end());
  }
}

void PostProcessor::pad(std::vector<TokenId>& ids) const {
  if (!padding_) {
    return;
  }
  std::size_t length = padding_->fixed_length > 0 ? padding_->fixed_length : ids.size();
  if (padding_->multiple_of > 0 && length % padding_->multiple_of > 0) {
    length += padding_->multiple_of - length % padding_->multiple_of;
  }
  if (ids.size() < length) {
    ids.insert(padding_->on_left ? ids.begin() : ids.end(), length - ids.size(), padding_->pad);
  }
}

}  // namespace quire::text
