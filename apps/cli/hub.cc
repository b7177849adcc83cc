#include "hub.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "quire/result.h"
#include "quire/tools.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPreset = "preset:";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the folder where huggingface_hub keeps what it has downloaded.
fs::path cache_folder() {
  for (const char* const name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string folder = variable(name); !folder.empty()) {
      return expand_home(folder);
    }
  }
  const std::string caches = variable("XDG_CACHE_HOME");
  const std::string home = variable("HF_HOME");
  const fs::path above = caches.empty() ? "~/.cache" : caches;
  return fs::path(expand_home(home.empty() ? (above / "huggingface").string() : home)) / "hub";
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Returns true when `text` is a part of a name: letters, digits, points, dashes and underscores.
bool is_part(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

// Returns the folder of a revision (a branch, a tag or a commit), "" where there is none.
fs::path snapshot(const fs::path& repository, const std::string& revision) {
  std::string commit;
  std::ifstream(repository / "refs" / revision) >> commit;
  fs::path folder = repository / "snapshots" / (commit.empty() ? revision : commit);
  return is_folder(folder) ? folder : fs::path();
}

Error not_there(const std::string& model, const std::string& why) {
  return {.code = ErrorCode::kIo, .message = "no model at \"" + model + "\": no such path" + why};
}

Result<std::string> find_named(const std::string& model, const std::string& name,
                               const std::string& revision) {
  std::string folder = "models--" + name;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path cache = cache_folder();
  const fs::path found = snapshot(cache / folder, revision);
  if (!found.empty()) {
    return found.string();
  }
  const std::string what =
      is_folder(cache / folder) ? "revision \"" + revision + "\" of it" : "model of that name";
  return not_there(model, ", and no " + what + " in " + cache.string() + "; \"hf download " + name +
                              "\" fetches it");
}

}  // namespace

Result<std::string> find_model(const std::string& model) {
  std::error_code error;
  if (model.starts_with(kPreset) || fs::exists(expand_home(model), error)) {
    return model;
  }
  if (fs::path(model).extension() == ".gguf" || fs::path(model).extension() == ".safetensors") {
    return model;  // a file that is not there; no name of a model ends so
  }
  const std::size_t at = std::min(model.find('@'), model.size());
  const std::string name = model.substr(0, at);
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos && is_part(name.substr(0, slash)) &&
      is_part(name.substr(slash + 1)) && slash > 0 && name.front() != '.') {
    return find_named(model, name, at < model.size() ? model.substr(at + 1) : "main");
  }
  const bool is_address = model.find("://") != std::string::npos || model.starts_with("hf.co/") ||
                          model.starts_with("huggingface.co/");
  const bool has_tag = model.find(':') != std::string::npos;  // as of Ollama
  if (is_address || has_tag) {
    return not_there(model,
                     "; Quire downloads nothing: give a Hugging Face folder, a .gguf file, or the "
                     "owner/name of a model in the local Hugging Face cache");
  }
  return model;
}

}  // namespace quire::cli
