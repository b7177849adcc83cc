// Shows items as text and reads settings by name, for the REPL.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/context.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::cli {

// Formats an item as "context 5f0c3a91b2d4 ada, 14 tokens".
[[nodiscard]] std::string title(const ContextItem& item);

// Formats one line for each item: id, kind, name, active, tier, tokens, beginning of the text.
// `colours`: inactive ones are dim.
[[nodiscard]] std::string item_table(std::span<const ContextItem> items, bool colours);

// Formats all about one item.
[[nodiscard]] std::string item_listing(const ContextItem& item);

// The value that resets a setting to that of the command line.
inline constexpr std::string_view kDefault = "default";

// Returns `base` with settings by name, written as on the command line without the "--".
// kInvalidArgument.
[[nodiscard]] Result<SamplingParams> with_settings(
    const SamplingParams& base, const std::map<std::string, std::string>& settings);
// Formats "temperature: 0", line by line; only the setting `name` if it is given. kNotFound.
[[nodiscard]] Result<std::string> settings_listing(const SamplingParams& params,
                                                   const std::string& name);
[[nodiscard]] std::vector<std::string> setting_names();

// Returns the files and folders whose path begins so; folders end with a slash.
[[nodiscard]] std::vector<std::string> files_like(std::string_view beginning);

}  // namespace quire::cli
