#include "quire/engine/model_bundle.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/folder_names.h"
#include "quire/base/home_path.h"
#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/engine/bundle_options.h"
#include "quire/engine/gguf_vocab.h"
#include "quire/engine/weights_cache.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/text/chat_template.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_config.h"
#include "quire/types.h"
#include "quire/weights/model_files.h"

namespace quire::engine {
namespace {

namespace fs = std::filesystem;
using base::Json;
using base::JsonView;

constexpr std::string_view kPresetPrefix = "preset:";
constexpr std::int32_t kPresetPositions = 1 << 20;

bool is_preset(std::string_view model) { return model.starts_with(kPresetPrefix); }

// Returns whether a path that locate gave is a GGUF file, and not a folder.
bool is_gguf(const std::string& located) {
  std::error_code failure;
  return !fs::is_directory(located, failure);
}

// Returns the file's text, or "" when there is no such file.
Result<std::string> read_optional(const fs::path& path) {
  std::error_code failure;
  if (!fs::exists(path, failure)) {
    return std::string();
  }
  return base::read_file(path);
}

Result<Json> parse_object(const std::string& text, std::string_view what) {
  return text.empty() ? Json::object() : base::parse_model_object(text, what);
}

// The sources of a model's chat templates; empty: there is none. transformers takes the second one
// when a conversation has tools, and no other without being asked.
struct TemplateSources {
  std::string main, tool_use;
  std::vector<std::string> named;  // the names of all that have one
  std::string_view place;          // place of the main one
};

// Adds the templates of a configuration where none is known yet. A template stands as a string, or
// as a list of {"name", "template"}.
Status add_templates(JsonView config, TemplateSources& sources) {
  const JsonView value = config.find("chat_template");
  if (value.is_null() || !sources.main.empty()) {
    return {};
  }
  if (value.is_string()) {
    sources.main = value.as_string();
    return {};
  }
  if (!value.is_array()) {
    const char* type = value.is_object() ? "an object" : value.is_bool() ? "a bool" : "a number";
    return {ErrorCode::kInvalidArgument,
            base::str_cat("\"chat_template\" is ", type,
                          "; it must be a string, or a list of {\"name\", \"template\"}")};
  }
  for (const JsonView item : value.elements()) {
    const JsonView name = item.find("name");
    const JsonView body = item.find("template");
    if (!body.is_string() || !name.is_string()) {
      continue;
    }
    sources.named.emplace_back(name.as_string());
    if (name == "default") {
      sources.main = body.as_string();
    } else if (name == "tool_use") {
      sources.tool_use = body.as_string();
    }
  }
  return {};
}

std::string spelling(const text::Tokenizer& tokenizer, std::optional<TokenId> id) {
  if (!id) {
    return {};
  }
  auto token = tokenizer.id_to_token(*id);
  return token.ok() ? std::move(token).value() : std::string();
}

// Says why there is a template that cannot be read; "" if it can, or is not there.
std::string parse_template(const std::string& source, std::optional<text::ChatTemplate>& parsed) {
  if (source.empty()) {
    return "";
  }
  auto result = text::ChatTemplate::parse(source);
  if (!result.ok()) {
    return base::str_cat("the model's chat template is not usable: ", result.error().message);
  }
  parsed.emplace(std::move(result).value());
  return "";
}

// Says why there is no main template.
std::string without_template(const TemplateSources& sources) {
  if (sources.named.empty()) {
    return "the model has no chat template";
  }
  std::string names;
  for (const std::string& name : sources.named) {
    names += base::str_cat(names.empty() ? "" : ", ", base::quoted(name, 40));
  }
  return base::str_cat("the model has chat templates named ", names,
                       " and none named \"default\"; copy the one to use to ", sources.place);
}

std::shared_ptr<TextBundle> make_text(text::Tokenizer tokenizer, const TemplateSources& sources) {
  auto bundle = std::make_shared<TextBundle>(TextBundle{.tokenizer = std::move(tokenizer)});
  bundle->bos_token = spelling(bundle->tokenizer, bundle->tokenizer.bos_token_id());
  bundle->eos_token = spelling(bundle->tokenizer, bundle->tokenizer.eos_token_id());
  const std::string main_error = parse_template(sources.main, bundle->chat_template);
  bundle->template_unusable = !main_error.empty();
  bundle->template_error = main_error.empty() ? without_template(sources) : main_error;
  bundle->tool_template_error = parse_template(sources.tool_use, bundle->tool_template);
  return bundle;
}

Result<std::shared_ptr<TextBundle>> text_of_gguf(const weights::GgufFile& file) {
  QUIRE_TRY(auto vocab, vocab_from_gguf(file));
  QUIRE_TRY(auto tokenizer, text::Tokenizer::from_vocab(std::move(vocab)));
  TemplateSources sources;
  QUIRE_TRY(sources.main, file.get_string("tokenizer.chat_template", ""));
  QUIRE_TRY(sources.tool_use, file.get_string("tokenizer.chat_template.tool_use", ""));
  constexpr std::string_view kBeginning = "tokenizer.chat_template.";
  for (const std::string& key : file.keys()) {
    if (key.starts_with(kBeginning)) {
      sources.named.push_back(key.substr(kBeginning.size()));
    }
  }
  sources.place = "the key tokenizer.chat_template";
  return make_text(std::move(tokenizer), sources);
}

// Returns a message that begins with the name of a file, with the folder before it.
std::string in_folder(const fs::path& folder, std::string_view message) {
  return base::str_cat((folder / "").string(), message);
}

// Returns the file of a folder for which its tokenizer could not be read.
Result<const char*> broken_file(const fs::path& folder) {
  constexpr const char* kConfig = "tokenizer_config.json";
  constexpr const char* kMap = "special_tokens_map.json";
  QUIRE_TRY(const std::string config, read_optional(folder / kConfig));
  QUIRE_TRY(const std::string map, read_optional(folder / kMap));
  if (!text::parse_tokenizer_config(config, "").ok()) {
    return kConfig;
  }
  if (!text::parse_tokenizer_config(config, map).ok()) {
    return kMap;
  }
  std::error_code failure;
  return fs::exists(folder / "tokenizer.json", failure) ? "tokenizer.json" : "tokenizer.model";
}

// Returns `error` with the path of the file that it is about before it, unless it says one.
Error naming(const fs::path& folder, Error error) {
  if (error.message.find(folder.string()) != std::string::npos) {
    return error;
  }
  const auto name = broken_file(folder);
  if (!name.ok()) {
    return name.error();
  }
  const bool says_it = error.message.starts_with(*name);
  error.message =
      in_folder(folder, says_it ? error.message : base::str_cat(*name, ": ", error.message));
  return error;
}

// Says how many ids the model has. Errors of config.json are those of who opens the model.
void set_padded_size(const fs::path& folder, text::Tokenizer& tokenizer) {
  const auto text = read_optional(folder / "config.json");
  const auto config =
      text.ok() ? base::parse_json(*text, "config.json") : Result<base::Json>(text.error());
  if (!config.ok()) {
    return;
  }
  for (const JsonView holder : {config->view(), config->view().find("text_config")}) {
    const JsonView size = holder.find("vocab_size");
    const auto rows = size.exact<std::int32_t>();
    if (rows && *rows > 0 && *rows <= std::int32_t{1} << 30) {
      tokenizer.set_padded_size(*rows);
    }
  }
}

// Adds the templates beside the main one, by the names of their files. A folder that cannot be
// listed has none.
Status name_additional(const fs::path& folder, TemplateSources& sources) {
  const Status listed = base::for_each_name(folder, [&](const std::string& name) {
    const fs::path file = name;
    if (file.extension() == ".jinja") {
      sources.named.push_back(file.stem().string());
    }
  });
  std::ranges::sort(sources.named);
  const bool lacks_memory = !listed.ok() && listed.error().code == ErrorCode::kOutOfBlocks;
  return lacks_memory ? listed : Status();
}

Result<std::shared_ptr<TextBundle>> text_of_folder(const fs::path& folder) {
  auto tokenizer = text::Tokenizer::from_folder(folder);
  if (!tokenizer.ok()) {
    return naming(folder, std::move(tokenizer).error());
  }
  set_padded_size(folder, *tokenizer);
  TemplateSources sources;
  QUIRE_TRY(sources.main, read_optional(folder / "chat_template.jinja"));
  const fs::path additional = folder / "additional_chat_templates";
  QUIRE_TRY(sources.tool_use, read_optional(additional / "tool_use.jinja"));
  QUIRE_TRY_STATUS(name_additional(additional, sources));
  sources.place = "chat_template.jinja";
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    QUIRE_TRY(const auto json, read_optional(folder / name));
    QUIRE_TRY(const auto config, parse_object(json, (folder / name).string()));
    if (const Status added = add_templates(config, sources); !added.ok()) {
      return {added.error().code,
              base::str_cat((folder / name).string(), ": ", added.error().message)};
    }
  }
  return make_text(std::move(tokenizer).value(), sources);
}

struct ConfigTexts {
  std::string config, generation;  // the second may be empty
};

Result<ConfigTexts> config_texts(const fs::path& folder) {
  ConfigTexts texts;
  if (std::error_code failure; !fs::exists(folder / "config.json", failure)) {
    QUIRE_TRY_STATUS(weights::ModelFiles::open(folder));  // several .gguf files: says so
  }
  QUIRE_TRY(texts.config, base::read_file(folder / "config.json"));
  QUIRE_TRY(texts.generation, read_optional(folder / "generation_config.json"));
  return texts;
}

Result<model::ModelConfig> config_of_folder(const fs::path& folder) {
  std::error_code failure;
  if (fs::exists(folder / "adapter_config.json", failure)) {
    return {
        ErrorCode::kUnsupported,
        base::str_cat((folder / "adapter_config.json").string(),
                      " names an adapter, which would be left out: merge it into the weights "
                      "(peft: merge_and_unload), or take the file away if it is merged already")};
  }
  QUIRE_TRY(const ConfigTexts texts, config_texts(folder));
  auto parsed = model::config_from_hf(texts.config, texts.generation);
  if (!parsed.ok()) {
    Error error = parsed.error();
    error.message = in_folder(folder, error.message);
    return error;
  }
  return parsed;
}

Result<ModelBundle> open_preset(const kernels::KernelContext& context, std::string_view name,
                                const BundleOptions& options) {
  QUIRE_TRY(auto config, model::config_from_preset(name));
  config.context_length = kPresetPositions;  // random weights learned no length: bench at any depth
  QUIRE_TRY(const Formats formats, choose_formats(options, config));
  QUIRE_TRY(auto decoder, model::Decoder::random(context, config, formats.weights, options.seed,
                                                 placement_of(options, formats)));
  ModelBundle bundle;
  bundle.decoder.emplace(std::move(decoder));
  bundle.text_error = "a preset has no tokenizer; pass token ids";
  bundle.dtype = formats.compute;
  bundle.kv_dtype = formats.kv;
  bundle.kv_format = formats.stored;
  return bundle;
}

// Puts the template that LLMOptions::chat_template names in place of the model's own, with tools,
// too.
Status set_template(const std::string& named, TextBundle& text) {
  const bool is_text = named.find("{{") != std::string::npos ||
                       named.find("{%") != std::string::npos ||
                       named.find('\n') != std::string::npos;
  std::string source = named;
  if (!is_text) {
    auto read = base::read_file(base::home_path(named));
    if (!read.ok()) {
      Error error = std::move(read).error();
      error.message = base::str_cat("chat_template: ", error.message);
      return error;
    }
    source = std::move(read).value();
  }
  auto parsed = text::ChatTemplate::parse(source);
  if (!parsed.ok()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("chat_template is not usable: ", parsed.error().message)};
  }
  text.chat_template.emplace(std::move(parsed).value());
  text.tool_template.reset();
  text.template_error.clear();
  text.tool_template_error.clear();
  text.template_unusable = false;
  return {};
}

// Files and config that the weights of a model on disk come from.
struct Source {
  weights::ModelFiles model_files;
  model::ModelConfig config;
};

Result<Source> open_source(const std::string& model) {
  if (is_gguf(model)) {
    QUIRE_TRY(auto model_files, weights::ModelFiles::open(model));
    QUIRE_TRY(auto config, model::config_from_gguf(*model_files.gguf()));
    return Source{std::move(model_files), std::move(config)};
  }
  QUIRE_TRY(auto config, config_of_folder(model));
  QUIRE_TRY(auto model_files, weights::ModelFiles::open(model));
  model::take_dtype(model_files, config);
  model::note_skipped_tensors(model_files, config);
  return Source{std::move(model_files), std::move(config)};
}

// Returns the tokens that end an answer: all that a source calls the end of a text, a turn or a
// message.
std::vector<TokenId> ends_of_text(const model::ModelConfig& config, const TextBundle* text) {
  std::vector<TokenId> ids = config.eos_token_ids;
  const auto add = [&](std::optional<TokenId> id) {
    if (id && *id < config.vocab_size && std::ranges::find(ids, *id) == ids.end()) {
      ids.push_back(*id);
    }
  };
  if (text == nullptr) {
    return ids;
  }
  add(text->tokenizer.eos_token_id());
  for (const TokenId id : text->tokenizer.turn_end_ids()) {
    add(id);
  }
  for (const text::NamedToken& token : text->tokenizer.named_tokens()) {
    if (token.name == "eot_token" || token.name == "eom_token") {
      add(text->tokenizer.token_to_id(token.text));
    }
  }
  return ids;
}

}  // namespace

Result<std::string> locate(const std::string& model) {
  std::string path = base::home_path(model);
  std::error_code failure;
  if (!fs::exists(path, failure)) {
    return Error{.code = ErrorCode::kIo,
                 .message = base::str_cat("no model at ", base::quoted(path, 400),
                                          ": no such file or folder"),
                 .system_error = ENOENT};
  }
  if (!fs::is_directory(path, failure)) {
    if (!weights::is_gguf_file(path)) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat(base::quoted(path, 400), " is neither a model folder nor a GGUF file")};
    }
    return path;
  }
  if (!fs::exists(fs::path(path) / "config.json", failure)) {
    const auto model_files = weights::ModelFiles::open(path);
    if (model_files.ok() && model_files->gguf() != nullptr) {
      return model_files->files().front().path;
    }
  }
  return path;
}

Result<std::shared_ptr<TextBundle>> text_of(const std::string& path,
                                            const weights::ModelFiles& model_files) {
  if (is_gguf(path)) {
    return model_files.gguf()->find("tokenizer.ggml.tokens") == nullptr
               ? std::shared_ptr<TextBundle>()
               : text_of_gguf(*model_files.gguf());
  }
  std::error_code failure;
  if (!fs::exists(fs::path(path) / "tokenizer.json", failure) &&
      !fs::exists(fs::path(path) / "tokenizer.model", failure)) {
    return std::shared_ptr<TextBundle>();
  }
  return text_of_folder(path);
}

Result<std::shared_ptr<const TextBundle>> open_text(const std::string& model) {
  if (is_preset(model)) {
    return {ErrorCode::kUnsupported, "a preset has no tokenizer"};
  }
  QUIRE_TRY(const std::string path, locate(model));
  std::shared_ptr<const TextBundle> text;
  if (!is_gguf(path)) {
    QUIRE_TRY(text, text_of_folder(path));
    return text;
  }
  QUIRE_TRY(const auto model_files, weights::ModelFiles::open(path));
  QUIRE_TRY(text, text_of_gguf(*model_files.gguf()));
  return text;
}

Result<model::ModelConfig> read_config(const std::string& model) {
  if (is_preset(model)) {
    return model::config_from_preset(model.substr(kPresetPrefix.size()));
  }
  QUIRE_TRY(const std::string path, locate(model));
  if (!is_gguf(path)) {
    return config_of_folder(path);
  }
  QUIRE_TRY(const auto model_files, weights::ModelFiles::open(path));
  return model::config_from_gguf(*model_files.gguf());
}

std::vector<std::string> refused_by_config(const std::string& model) {
  std::vector<std::string> refused;
  if (const auto config = read_config(model); !config.ok()) {
    refused.push_back(config.error().message);
  }
  const auto path = locate(model);
  if (!path.ok() || is_gguf(*path)) {
    return refused;
  }
  const auto texts = config_texts(*path);
  if (!texts.ok()) {
    return refused;
  }
  for (const std::string& what : model::refused_by_hf(texts->config, texts->generation)) {
    std::string message = in_folder(*path, what);
    if (std::ranges::find(refused, message) == refused.end()) {
      refused.push_back(std::move(message));
    }
  }
  return refused;
}

std::string digest_of(const ModelBundle& bundle) {
  QUIRE_CHECK(bundle.decoder.has_value(), "a bundle without a decoder");
  base::FieldHasher hasher;
  hasher.add(bundle.decoder->weights_digest());
  hasher.add_int(static_cast<std::int64_t>(bundle.kv_dtype));
  if (bundle.kv_format != tensor::KVFormat::kPlain) {  // plain KV keeps the digest that it had
    hasher.add(tensor::kv_format_name(bundle.kv_format, bundle.kv_dtype));
  }
  if (bundle.text != nullptr) {
    const text::Tokenizer& tokenizer = bundle.text->tokenizer;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      const auto token = tokenizer.id_to_token(id);
      hasher.add(token.ok() ? *token : "");
    }
  }
  return base::to_hex(hasher.finish());
}

Result<ModelBundle> open_model(const kernels::KernelContext& context, const std::string& model,
                               const BundleOptions& options) {
  if (is_preset(model) && !options.weights_store.empty()) {
    return {ErrorCode::kInvalidArgument, base::str_cat("cache_weights is for models on disk, and ",
                                                       model, " has no file; leave it out")};
  }
  if (is_preset(model) && !options.chat_template.empty()) {
    return {ErrorCode::kUnsupported,
            "chat_template needs a tokenizer, which a preset does not have; leave it out"};
  }
  if (is_preset(model)) {
    return open_preset(context, model.substr(kPresetPrefix.size()), options);
  }
  QUIRE_TRY(const std::string path, locate(model));
  QUIRE_TRY(const auto source, open_source(path));
  QUIRE_TRY(const Formats formats, choose_formats(options, source.config));
  const model::PackOptions packing{
      .format = formats.weights,
      .keep_codes = options.quantize.empty() && options.dtype == "auto",
      .progress = options.progress};
  ModelBundle bundle;
  // Meanwhile, for it takes as long as verifying the weights of a small model.
  auto text = std::async([&] { return text_of(path, source.model_files); });
  std::optional<WeightsCache> cache;
  if (!options.weights_store.empty()) {
    QUIRE_TRY(cache, WeightsCache::open(options.weights_store,
                                        {path, source.model_files, source.config, packing}));
    bundle.decoder = cache->find(context, source.config);
  }
  QUIRE_TRY(const auto own_text, text.get());
  if (!options.chat_template.empty()) {
    if (own_text == nullptr) {
      return {ErrorCode::kUnsupported,
              "chat_template needs a tokenizer, which the model does not have; leave it out"};
    }
    QUIRE_TRY_STATUS(set_template(options.chat_template, *own_text));
  }
  bundle.text = own_text;
  if (!bundle.decoder) {
    QUIRE_TRY(bundle.decoder, model::Decoder::open(context, source.config, source.model_files,
                                                   packing, placement_of(options, formats)));
    if (cache) {
      cache->keep(context, *bundle.decoder);
    }
  }
  if (cache) {
    bundle.remarks = cache->remarks();
  }
  if (bundle.text == nullptr) {
    bundle.text_error = base::str_cat(
        path, " holds no ", is_gguf(path) ? "vocabulary" : "tokenizer.json or tokenizer.model");
  }
  bundle.dtype = formats.compute;
  bundle.kv_dtype = formats.kv;
  bundle.kv_format = formats.stored;
  bundle.eos_token_ids = ends_of_text(source.config, bundle.text.get());
  return bundle;
}

}  // namespace quire::engine
