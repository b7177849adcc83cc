// pre_tokenizers_from_json: the "pre_tokenizer" section of tokenizer.json.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/json_section.h"
#include "quire/text/pattern.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/pre_tokenizer_internal.h"
#include "quire/text/regex.h"
#include "quire/text/unicode.h"

namespace quire::text {
namespace {

Result<SplitBehavior> behavior_from_json(base::JsonView object, std::string_view fallback) {
  QUIRE_TRY(const std::string name, base::get_string(object, "behavior", fallback));
  if (name == "Removed") {
    return SplitBehavior::kRemoved;
  }
  if (name == "Isolated") {
    return SplitBehavior::kIsolated;
  }
  if (name == "MergedWithPrevious") {
    return SplitBehavior::kMergedWithPrevious;
  }
  if (name == "MergedWithNext") {
    return SplitBehavior::kMergedWithNext;
  }
  if (name == "Contiguous") {
    return SplitBehavior::kContiguous;
  }
  return unknown_type("split behavior", name);
}

Status add_split(base::JsonView object, PreTokenizers& steps) {
  QUIRE_TRY(Pattern pattern, Pattern::from_json(object.find("pattern"), "pre_tokenizer Split"));
  QUIRE_TRY(const SplitBehavior behavior, behavior_from_json(object, ""));
  QUIRE_TRY(const bool invert, base::get_bool(object, "invert", false));
  steps.push_back(make_split(std::move(pattern), behavior, invert));
  return {};
}

Status add_byte_level(base::JsonView object, PreTokenizers& steps) {
  QUIRE_TRY(const bool add_prefix_space, base::get_bool(object, "add_prefix_space", true));
  QUIRE_TRY(const bool use_regex, base::get_bool(object, "use_regex", true));
  if (add_prefix_space) {
    steps.push_back(make_space_prefix());
  }
  if (use_regex) {
    QUIRE_TRY(Regex regex, Regex::compile(kGpt2Pattern));
    steps.push_back(make_split(Pattern::regex(std::move(regex)), SplitBehavior::kIsolated, false));
  }
  return {};
}

Status add_fixed_length(base::JsonView object, PreTokenizers& steps) {
  QUIRE_TRY(const std::int64_t length, base::get_int(object, "length", 5));
  if (length < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("pre_tokenizer FixedLength: length ", length, " must be at least 1")};
  }
  steps.push_back(make_fixed_length(static_cast<std::size_t>(length)));
  return {};
}

Status add_char_split(const TypedSection& section, PreTokenizers& steps) {
  if (section.type == "Digits") {
    QUIRE_TRY(const bool individual, base::get_bool(section.object, "individual_digits", false));
    steps.push_back(make_char_split(
        is_numeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous));
    return {};
  }
  QUIRE_TRY(const SplitBehavior behavior, behavior_from_json(section.object, "Isolated"));
  steps.push_back(make_char_split(is_punctuation, behavior));
  return {};
}

// Adds all types but ByteLevel and Sequence.
Status add_step(const TypedSection& section, PreTokenizers& steps) {
  const std::string& type = section.type;
  if (type == "Split") {
    return add_split(section.object, steps);
  }
  if (type == "Digits" || type == "Punctuation") {
    return add_char_split(section, steps);
  }
  if (type == "FixedLength") {
    return add_fixed_length(section.object, steps);
  }
  if (type == "Metaspace") {
    QUIRE_TRY(const MetaspaceOptions options, metaspace_from_json(section.object));
    steps.push_back(make_metaspace(options));
  } else if (type == "CharDelimiterSplit") {
    QUIRE_TRY(std::string delimiter, require_string(section.object, "delimiter"));
    steps.push_back(
        make_split(Pattern::literal(std::move(delimiter)), SplitBehavior::kRemoved, false));
  } else if (type == "WhitespaceSplit") {
    steps.push_back(make_char_split(is_whitespace, SplitBehavior::kRemoved));
  } else if (type == "Whitespace") {
    steps.push_back(make_whitespace_split_words());
  } else if (type == "BertPreTokenizer") {
    steps.push_back(make_bert_pre_tokenizer());
  } else {
    return unknown_type("pre_tokenizer", type);
  }
  return {};
}

}  // namespace

Result<MetaspaceOptions> metaspace_from_json(base::JsonView object) {
  MetaspaceOptions options;
  QUIRE_TRY(options.replacement, get_char(object, "replacement", options.replacement));
  QUIRE_TRY(options.split, base::get_bool(object, "split", true));
  // Old files say add_prefix_space; it only disagrees with the scheme in files that were edited.
  QUIRE_TRY(const bool add_prefix_space, base::get_bool(object, "add_prefix_space", true));
  QUIRE_TRY(const std::string scheme,
            base::get_string(object, "prepend_scheme", add_prefix_space ? "always" : "never"));
  if (scheme == "always") {
    options.prepend_scheme = PrependScheme::kAlways;
  } else if (scheme == "first") {
    options.prepend_scheme = PrependScheme::kFirst;
  } else if (scheme == "never") {
    options.prepend_scheme = PrependScheme::kNever;
  } else {
    return unknown_type("prepend_scheme", scheme);
  }
  if (!add_prefix_space && options.prepend_scheme != PrependScheme::kNever) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("Metaspace: add_prefix_space is false, prepend_scheme is ",
                          base::quoted(scheme))};
  }
  return options;
}

Result<PreTokenizerSet> pre_tokenizers_from_json(base::JsonView section, bool defer_byte_level) {
  PreTokenizerSet set;
  const auto add = [&](const TypedSection& each) -> Status {
    if (set.spells_bytes) {  // a step follows: it must see the spelling
      set.steps.push_back(make_byte_spelling());
      set.spells_bytes = false;
    }
    if (each.type != "ByteLevel") {
      return add_step(each, set.steps);
    }
    set.spells_bytes = true;
    return add_byte_level(each.object, set.steps);
  };
  QUIRE_TRY_STATUS(for_each_section(section, "pre_tokenizer", "pretokenizers", add));
  if (set.spells_bytes && !defer_byte_level) {
    set.steps.push_back(make_byte_spelling());
    set.spells_bytes = false;
  }
  return set;
}

}  // namespace quire::text
