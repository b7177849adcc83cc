// Tokenizer benchmark, and the product's side of the differential tests.
//
//   tokenizer_bench TOKENIZER TEXT_FILE   MB/s of text on one thread, median of several rounds:
//   encode
//                                         (whole text, and line by line), decode and streaming, and
//                                         the milliseconds of loading; one JSON line
//   tokenizer_bench TOKENIZER --answer    for each line on stdin, {"text", "add", "special"} or
//                                         {"ids"}, one line {"ids", "text", "skipped", "streamed"}
//                                         on stdout
//
// TOKENIZER is a tokenizer.json, a tokenizer.model, or a model folder. The peer's side is
// bench/tokenizer_peer.py.
#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "quire/base/mapped_file.h"
#include "quire/result.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace {

using quire::Result;
using quire::TokenId;
using quire::text::Detokenizer;
using quire::text::Tokenizer;
namespace json = boost::json;

constexpr int kRounds = 5;

Result<Tokenizer> load(const std::filesystem::path& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) {
    return Tokenizer::from_folder(path);
  }
  if (path.extension() == ".model") {
    return Tokenizer::from_sentencepiece(path, "");
  }
  QUIRE_TRY(const std::string text, quire::base::read_file(path));
  return Tokenizer::from_json(text, "");
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Median MB/s of `work` over `bytes`.
template <class Work>
double megabytes_per_second(std::size_t bytes, Work&& work) {
  std::array<double, kRounds> rates{};
  for (double& rate : rates) {
    const auto start = std::chrono::steady_clock::now();
    work();
    rate = static_cast<double>(bytes) / 1e6 / seconds_since(start);
  }
  std::nth_element(rates.begin(), rates.begin() + kRounds / 2, rates.end());
  return rates[kRounds / 2];
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string streamed(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  Detokenizer stream(tokenizer, false);
  std::string text;
  for (const TokenId id : ids) {
    text += stream.push(id);
  }
  text += stream.flush();
  return text;
}

int measure(const Tokenizer& tokenizer, const std::string& text, double load_seconds) {
  const std::vector<std::string_view> lines = lines_of(text);
  std::vector<TokenId> ids;
  const double whole =
      megabytes_per_second(text.size(), [&] { ids = tokenizer.encode(text).value(); });
  std::size_t num_line_ids = 0;
  const double by_line = megabytes_per_second(text.size(), [&] {
    num_line_ids = 0;
    for (const std::string_view line : lines) {
      num_line_ids += tokenizer.encode(line).value().size();
    }
  });
  std::string decoded;
  const double decode =
      megabytes_per_second(text.size(), [&] { decoded = tokenizer.decode(ids, false).value(); });
  const double stream =
      megabytes_per_second(text.size(), [&] { decoded = streamed(tokenizer, ids); });
  std::cout << json::serialize(json::object{{"bytes", text.size()},
                                            {"tokens", ids.size()},
                                            {"tokens_by_line", num_line_ids},
                                            {"decoded_bytes", decoded.size()},
                                            {"load_ms", 1e3 * load_seconds},
                                            {"encode_mb_s", whole},
                                            {"encode_lines_mb_s", by_line},
                                            {"decode_mb_s", decode},
                                            {"stream_mb_s", stream}})
            << "\n";
  return 0;
}

std::vector<TokenId> ids_of(const Tokenizer& tokenizer, const json::object& query) {
  if (const json::value* ids = query.if_contains("ids")) {
    return json::value_to<std::vector<TokenId>>(*ids);
  }
  const json::string& text = query.at("text").as_string();
  return tokenizer
      .encode({text.data(), text.size()}, {.add_special_tokens = query.at("add").as_bool(),
                                           .parse_special = query.at("special").as_bool()})
      .value();
}

json::object answer_one(const Tokenizer& tokenizer, const json::object& query) {
  const std::vector<TokenId> ids = ids_of(tokenizer, query);
  return {{"ids", json::value_from(ids)},
          {"text", tokenizer.decode(ids, false).value()},
          {"skipped", tokenizer.decode(ids, true).value()},
          {"streamed", streamed(tokenizer, ids)}};
}

int answer(const Tokenizer& tokenizer) {
  for (std::string line; std::getline(std::cin, line);) {
    boost::system::error_code failure;
    const json::value query = json::parse(line, failure);
    if (failure) {
      std::cerr << "query: not valid JSON: " << failure.message() << "\n";
      return 1;
    }
    std::cout << json::serialize(answer_one(tokenizer, query.as_object())) << "\n" << std::flush;
  }
  return 0;
}

int run(const std::string& tokenizer_path, const std::string& given) {
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = load(tokenizer_path);
  const double load_seconds = seconds_since(start);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.error().message << "\n";
    return 1;
  }
  if (given == "--answer") {
    return answer(tokenizer.value());
  }
  const auto text = quire::base::read_file(given);
  if (!text.ok()) {
    std::cerr << text.error().message << "\n";
    return 1;
  }
  return measure(tokenizer.value(), text.value(), load_seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tokenizer_bench TOKENIZER (TEXT_FILE | --answer)\n";
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& failure) {
    std::cerr << failure.what() << "\n";
    return 1;
  }
}
