// The golden files of tests/golden/model.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "runner.h"

namespace quire::model::testing {

inline std::filesystem::path golden_folder() {
  return std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / "model";
}

struct GoldenPrompt {
  Ids ids;
  std::vector<std::size_t> rows;
  std::vector<std::vector<float>> logits;  // [rows][vocab]
  Ids greedy;
};

struct Golden {
  double std = 0;
  double bf16_rms = 0;
  double bf16_max = 0;
  std::vector<double> inv_freq;
  double rope_scale = 0;
  std::vector<GoldenPrompt> prompts;
};

template <class T>
std::vector<T> numbers(base::JsonView list) {
  std::vector<T> out;
  for (const base::JsonView item : list.elements()) {
    out.push_back(static_cast<T>(item.as_double()));
  }
  return out;
}

inline base::Json parse_file(const std::filesystem::path& path) {
  return base::parse_json(read_text(path), path.string()).value();
}

inline Golden read_golden(const std::filesystem::path& folder) {
  const base::Json parsed = parse_file(folder / "golden.json");
  const base::JsonView json = parsed;
  Golden golden{.std = json.find("std").as_double(),
                .bf16_rms = json.find("bf16_rms").as_double(),
                .bf16_max = json.find("bf16_max").as_double(),
                .inv_freq = numbers<double>(json.find("inv_freq")),
                .rope_scale = json.find("rope_scale").as_double()};
  for (const base::JsonView item : json.find("prompts").elements()) {
    GoldenPrompt prompt{.ids = numbers<TokenId>(item.find("ids")),
                        .rows = numbers<std::size_t>(item.find("rows")),
                        .greedy = numbers<TokenId>(item.find("greedy"))};
    for (const base::JsonView row : item.find("logits").elements()) {
      prompt.logits.push_back(numbers<float>(row));
    }
    golden.prompts.push_back(std::move(prompt));
  }
  return golden;
}

// All variants: "llama_gqa", and "qwen2/model.gguf" for those that are there as GGUF too. Loading
// takes the path below golden_folder(); golden.json lies in the folder.
inline std::vector<std::string> variant_paths() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    const std::string name = entry.path().filename().string();
    if (std::filesystem::exists(entry.path() / "config.json")) {
      paths.push_back(name);
    }
    if (std::filesystem::exists(entry.path() / "model.gguf")) {
      paths.push_back(name + "/model.gguf");
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// "qwen2_gguf" for "qwen2/model.gguf".
inline std::string test_name(const std::string& variant_path) {
  const auto slash = variant_path.find('/');
  return slash == std::string::npos ? variant_path : variant_path.substr(0, slash) + "_gguf";
}

inline std::filesystem::path golden_of(const std::string& variant_path) {
  return golden_folder() / variant_path.substr(0, variant_path.find('/'));
}

}  // namespace quire::model::testing
