// Machines and models as JSON.
#include <new>
#include <string>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/diagnostics.h"
#include "quire/diagnostics/saved_file.h"
#include "quire/result.h"

namespace quire {
namespace {

using base::Json;

Json object_of(const NamedNumbers& numbers) {
  Json object = Json::object();
  for (const auto& [name, number] : numbers) {
    object.set(name, number);
  }
  return object;
}

Json object_of(const ModelInfo::Shape& shape) {
  Json object = Json::object({{"layers", shape.layers},
                              {"hidden_size", shape.hidden_size},
                              {"intermediate_size", shape.intermediate_size},
                              {"heads", shape.heads},
                              {"kv_heads", shape.kv_heads},
                              {"head_dim", shape.head_dim},
                              {"vocab_size", shape.vocab_size},
                              {"max_positions", shape.max_positions},
                              {"tied_embeddings", shape.tied_embeddings}});
  if (shape.experts > 0) {
    object.set("experts", shape.experts);
    object.set("experts_per_token", shape.experts_per_token);
  }
  return object;
}

Json object_of(const ModelInfo::Group& group) {
  Json entry = Json::object({{"kind", group.kind}});
  entry.set("layers", Json::list(group.layers));
  entry.set(group.kind == "state" ? "bytes" : "bytes_per_token", group.bytes);
  if (group.kind == "window") {
    entry.set("window", group.window);
  }
  return entry;
}

void add_config(const ModelInfo::Config& config, Json& report) {
  report.set("family", config.family);
  report.set("shape", object_of(config.shape));
  report.set("parameters", config.parameters);
  if (config.shape.experts > 0) {
    report.set("active_parameters", config.active_parameters);
  }
  report.set("dtype", config.dtype);
  report.set("weight_bytes", object_of(config.weight_bytes));
  report.set("kv_bytes_per_token", object_of(config.kv_bytes_per_token));
  Json groups = Json::array();
  for (const ModelInfo::Group& group : config.groups) {
    groups.push(object_of(group));
  }
  report.set("groups", std::move(groups));
  report.set("remarks", Json::list(config.remarks));
}

void add_files(const ModelInfo::Files& files, Json& report) {
  report.set("tensors", files.tensors);
  report.set("file_bytes", files.file_bytes);
  Json encodings = Json::object();
  for (const ModelInfo::Encoding& encoding : files.encodings) {
    Json entry = Json::object({{"tensors", encoding.tensors}});
    if (!encoding.computed_as.empty()) {
      entry.set("computed_as", object_of(encoding.computed_as));
    }
    encodings.set(encoding.name, std::move(entry));
  }
  report.set("encodings", std::move(encodings));
  report.set("tokenizer", nullptr);
  if (files.tokenizer) {
    report.set("tokenizer", Json::object({{"vocab_size", files.tokenizer->vocab_size},
                                          {"bos_token", files.tokenizer->bos_token},
                                          {"eos_token", files.tokenizer->eos_token}}));
  }
  report.set("chat_template", files.has_chat_template);
  if (files.tokenizer && !files.has_chat_template) {
    report.set("chat_template_error", files.chat_template_error);
  }
}

Json isa_report(const MachineInfo& machine) {
  Json supported = Json::array();
  Json self_test = Json::object();
  for (const MachineInfo::InstructionSet& isa : machine.isas) {
    supported.push(isa.name);
    self_test.set(isa.name, isa.self_test);
  }
  return Json::object({{"chosen", machine.chosen_isa},
                       {"supported", std::move(supported)},
                       {"self_test", std::move(self_test)}});
}

}  // namespace

Result<std::string> to_json(const MachineInfo& machine) try {
  return base::write_json(
      Json::object({{"version", machine.version},
                    {"compiler", machine.compiler},
                    {"system", machine.system},
                    {"cpu", machine.cpu},
                    {"cores", machine.cores},
                    {"memory_bytes", machine.memory_bytes},
                    {"isa", isa_report(machine)},
                    {"libraries", Json::object({{"boost", machine.boost_version}})},
                    {"devices", Json::object({{"cpu", machine.cpu}, {"cuda", machine.cuda}})}}));
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of a machine");
}

Result<std::string> to_json(const ModelInfo& model) try {
  Json report = Json::object({{"model", model.model}});
  if (model.config) {
    add_config(*model.config, report);
  }
  if (model.files) {
    add_files(*model.files, report);
  }
  report.set("unsupported", Json::list(model.unsupported));
  return base::write_json(report);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of a model");
}

Result<std::string> doctor_json() {
  QUIRE_TRY(const MachineInfo machine, doctor());
  return to_json(machine);
}

Result<std::string> inspect_json(const std::string& model) try {
  if (is_saved_file(model)) {
    return saved_file_json(model);
  }
  QUIRE_TRY(const ModelInfo info, inspect(model));
  return to_json(info);
} catch (const std::bad_alloc&) {
  return base::no_memory("looking at the model");
}

}  // namespace quire
