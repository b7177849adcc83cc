#include "quire/text/post_processor.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/json_section.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {
namespace {

Result<TokenId> checked_id(base::JsonView value, const Vocabulary& vocabulary) {
  const auto id = value.exact<TokenId>();
  if (!id || *id < 0 || *id >= vocabulary.end_id()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("post_processor: ", base::write_json(value),
                          " is not an id of the vocabulary of ", vocabulary.end_id(), " ids")};
  }
  return *id;
}

// Appends the "ids" of one entry of "special_tokens".
Status append_special(base::JsonView section, const std::string& name, const Vocabulary& vocabulary,
                      PostTemplate& out) {
  const base::JsonView entry = section.find("special_tokens").find(name);
  if (!entry.is_object()) {
    return {ErrorCode::kInvalidArgument, base::str_cat("post_processor: special token ",
                                                       base::quoted(name), " is not described")};
  }
  QUIRE_TRY(const base::JsonView ids, require_array(entry, "ids"));
  for (const base::JsonView value : ids.elements()) {
    QUIRE_TRY(const TokenId id, checked_id(value, vocabulary));
    out.emplace_back(id);
  }
  return {};
}

// Appends one piece of "single": {"SpecialToken": {"id": ...}} or {"Sequence": {"id": "A"}}.
Status append_piece(base::JsonView section, base::JsonView piece, const Vocabulary& vocabulary,
                    PostTemplate& out) {
  const base::JsonView special = piece.find("SpecialToken");
  if (special.is_object()) {
    QUIRE_TRY(const std::string name, require_string(special, "id"));
    return append_special(section, name, vocabulary, out);
  }
  const base::JsonView sequence = piece.find("Sequence");
  if (!sequence.is_object()) {
    return {ErrorCode::kInvalidArgument,
            "post_processor: a template piece must be SpecialToken or Sequence"};
  }
  QUIRE_TRY(const std::string which, require_string(sequence, "id"));
  if (which != "A") {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("post_processor: sequence ", base::quoted(which),
                          " in the template for one text")};
  }
  out.emplace_back(std::nullopt);
  return {};
}

Result<PostTemplate> template_processing(base::JsonView section, const Vocabulary& vocabulary) {
  QUIRE_TRY(const base::JsonView single, require_array(section, "single"));
  PostTemplate pattern;
  for (const base::JsonView piece : single.elements()) {
    QUIRE_TRY_STATUS(append_piece(section, piece, vocabulary, pattern));
  }
  return pattern;
}

// Reads "cls" and "sep", which are pairs of token and id.
Result<PostTemplate> cls_and_sep(base::JsonView section, const Vocabulary& vocabulary) {
  PostTemplate pattern(3);
  for (const auto& [key, place] : {std::pair("cls", 0), std::pair("sep", 2)}) {
    QUIRE_TRY(const base::JsonView pair, require_array(section, key));
    if (pair.size() != 2) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("post_processor: ", key, " must be a token and its id")};
    }
    QUIRE_TRY(pattern[static_cast<std::size_t>(place)], checked_id(pair[1], vocabulary));
  }
  return pattern;
}

}  // namespace

Result<PostProcessor> PostProcessor::from_json(base::JsonView section,
                                               const Vocabulary& vocabulary) {
  PostProcessor made;
  const auto add = [&](const TypedSection& each) -> Status {
    if (each.type == "ByteLevel") {
      return {};  // this type only moves offsets
    }
    const bool is_template = each.type == "TemplateProcessing";
    if (!is_template && each.type != "BertProcessing" && each.type != "RobertaProcessing") {
      return unknown_type("post_processor", each.type);
    }
    QUIRE_TRY(PostTemplate pattern, is_template ? template_processing(each.object, vocabulary)
                                                : cls_and_sep(each.object, vocabulary));
    made.templates_.push_back(std::move(pattern));
    return {};
  };
  QUIRE_TRY_STATUS(for_each_section(section, "post_processor", "processors", add));
  return made;
}

std::vector<TokenId> PostProcessor::apply(std::vector<TokenId> ids, base::WorkMeter& meter) const {
  for (const PostTemplate& pattern : templates_) {
    std::vector<TokenId> around;
    for (const std::optional<TokenId>& piece : pattern) {
      if (!meter.write(sizeof(TokenId) * (piece ? 1 : ids.size()))) {
        return ids;
      }
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
