// ToolSchemas: the types that a request's tools give to their parameters.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/result.h"

namespace quire::text::answer {

class ToolSchemas {
 public:
  ToolSchemas() = default;

  // Reads the list that a template takes as `tools`. Tools without a name or a schema are skipped.
  // kInvalidArgument for anything but a JSON list.
  [[nodiscard]] static Result<ToolSchemas> read(std::string_view tools_json);

  // Returns true where the request has no tools.
  [[nodiscard]] bool empty() const { return count_ == 0; }
  // Returns the JSON of a value that the model has written without quotes. A parameter that the
  // schema calls a string keeps its text. Others are JSON where the text is, and else a string.
  [[nodiscard]] base::Json value(std::string_view function, std::string_view parameter,
                                 std::string_view text) const;

 private:
  std::size_t count_ = 0;
  // By function and parameter: true for a type that is a string and nothing else.
  std::map<std::string, std::map<std::string, bool, std::less<>>, std::less<>> is_text_;
};

}  // namespace quire::text::answer
