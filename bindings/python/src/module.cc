// quire._quire: the C++ LLM for Python. Waiting releases the GIL and looks for signals, so that any
// number of threads may call and Ctrl-C works.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "chunks.h"
#include "context.h"
#include "errors.h"
#include "log.h"
#include "outputs.h"
#include "params.h"
#include "paths.h"
#include "quire/interrupt.h"
#include "quire/quire.h"
#include "sequence.h"
#include "store.h"
#include "text.h"
#include "waiting.h"
#include "wakeups.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

nb::list generate(LLM& llm, const std::vector<Prompt>& prompts, const nb::list& params,
                  const std::vector<RequestOptions>& options, const nb::object& progress) {
  const auto list = to_params_list(params);
  const PromptProgress report = progress_to(progress);
  const auto outputs = unwrap(without_gil(
      [&] { return llm.generate_batch(prompts, list, &interrupted, options, report); }));
  if (PyErr_Occurred() != nullptr) {
    throw nb::python_error();
  }
  return list_of(outputs, [](const GenerationOutput& output) { return to_dict(output); });
}

// Returns whether next_delta() would not wait.
bool has_delta(Stream& stream) {
  return without_gil([&] { return stream.wait(0); });
}

std::optional<nb::dict> next_delta(Stream& stream) {
  while (!without_gil([&] { return stream.wait(kInterruptPollMs); })) {
    if (PyErr_CheckSignals() != 0) {
      without_gil([&] { stream.close(); });
      throw nb::python_error();
    }
  }
  auto delta = unwrap(without_gil([&] { return stream.next(); }));
  return delta ? std::optional(to_dict(*delta)) : std::nullopt;
}

LLM open(const nb::bytes& model, LLMOptions options, const nb::object& progress) {
  set_progress(options, progress);
  const std::string path = to_path(model);
  return unwrap(without_gil([&] { return LLM::open(path, options); }));
}

// Returns a list of (id, name, JSON of the arguments).
nb::list tuples_of(const std::vector<ToolCall>& calls) {
  return list_of(calls, [](const ToolCall& call) {
    return nb::make_tuple(to_text(call.id), to_text(call.name), to_text(call.arguments_json));
  });
}

void bind_tokenizer(nb::module_& module) {
  nb::class_<AnswerParser>(module, "AnswerParser")
      .def("take",
           [](AnswerParser& parser, std::string text, std::vector<TokenId> ids, bool finished) {
             const AnswerParts parts = unwrap(parser.take(
                 {.text = std::move(text), .token_ids = std::move(ids), .finished = finished}));
             return nb::make_tuple(to_text(parts.thinking), to_text(parts.content),
                                   tuples_of(parts.tool_calls));
           });
  nb::class_<Tokenizer>(module, "Tokenizer")
      .def_static("open",
                  [](const nb::bytes& model) { return unwrap(Tokenizer::open(to_path(model))); })
      .def("encode",
           [](const Tokenizer& t, std::string_view text, bool add_special_tokens) {
             return unwrap(
                 without_gil([&] { return t.encode(text, add_special_tokens, &interrupted); }));
           })
      .def("decode",
           [](const Tokenizer& t, const std::vector<TokenId>& ids, bool skip) {
             const std::string text =
                 unwrap(without_gil([&] { return t.decode(ids, skip, &interrupted); }));
             return nb::steal(PyUnicode_DecodeUTF8(
                 text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
           })
      .def("id_to_token", [](const Tokenizer& t, TokenId id) { return unwrap(t.id_to_token(id)); })
      .def("token_bytes",
           [](const Tokenizer& t, TokenId id) {
             const std::string bytes = unwrap(t.token_bytes(id));
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("token_to_id", &Tokenizer::token_to_id)
      .def("apply_chat_template",
           [](const Tokenizer& t, const std::string& messages, bool prompt,
              const std::string& variables) {
             return unwrap(without_gil(
                 [&] { return t.apply_chat_template(messages, prompt, variables, &interrupted); }));
           })
      .def("render_chat_template",
           [](const Tokenizer& t, const std::string& messages, bool prompt,
              const std::string& variables) {
             return unwrap(without_gil([&] {
               return t.render_chat_template(messages, prompt, variables, &interrupted);
             }));
           })
      .def("answer_parser",
           [](const Tokenizer& t, const std::vector<TokenId>& prompt_ids,
              const std::string& tools) { return unwrap(t.answer_parser(prompt_ids, tools)); })
      .def("has_chat_template", &Tokenizer::has_chat_template)
      .def("template_variables", &Tokenizer::template_variables)
      .def("template_words", &Tokenizer::template_words)
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size)
      .def_prop_ro("bos_token_id", &Tokenizer::bos_token_id)
      .def_prop_ro("leading_bos_token_id", &Tokenizer::leading_bos_token_id)
      .def_prop_ro("eos_token_id", &Tokenizer::eos_token_id)
      .def_prop_ro("pad_token_id", &Tokenizer::pad_token_id)
      .def_prop_ro("unk_token_id", &Tokenizer::unk_token_id);
}

void bind_sessions(nb::module_& module, nb::class_<LLM>& llm) {
  nb::class_<SessionRetention>(module, "SessionRetention")
      .def(nb::init<>())
      .def_rw("priority", &SessionRetention::priority)
      .def_rw("ttl", &SessionRetention::ttl_seconds, nb::arg().none());
  llm.def(
         "pause_session",
         [](LLM& llm, const std::string& session, std::optional<double> expected_return,
            const std::string& salt) {
           unwrap(without_gil([&] { return llm.pause_session(session, expected_return, salt); }));
         },
         nb::arg("session"), nb::arg("expected_return").none(), nb::arg("salt"))
      .def("close_session",
           [](LLM& llm, const std::string& session, const std::string& salt) {
             unwrap(without_gil([&] { return llm.close_session(session, salt); }));
           })
      .def("set_retention", [](LLM& llm, const std::string& session,
                               const SessionRetention& retention, const std::string& salt) {
        unwrap(without_gil([&] { return llm.set_retention(session, retention, salt); }));
      });
}

// Binds what operators ask: of all tenants together.
void bind_operating(nb::class_<LLM>& llm) {
  llm.def("explain_across_salts",
          [](const LLM& llm, const Prompt& prompt) {
            return to_list(unwrap(without_gil([&] { return llm.explain_across_salts(prompt); })));
          })
      .def("metrics_text", [](const LLM& llm) { return unwrap(llm.metrics_text()); })
      .def("stats",
           [](const LLM& llm) {
             nb::dict dict;
             for (const auto& [name, value] : unwrap(llm.stats())) {
               dict[name.c_str()] = value;
             }
             return dict;
           })
      .def("pressure_json", [](const LLM& llm) { return unwrap(to_json(unwrap(llm.pressure()))); })
      .def("plan_log_json",
           [](const LLM& llm, std::int64_t count) {
             nb::list list;
             for (const PlanDecision& each :
                  unwrap(without_gil([&] { return llm.plan_log(count); }))) {
               list.append(unwrap(to_json(each)));
             }
             return list;
           })
      .def("remarks",
           [](const LLM& llm) {
             nb::list remarks;
             for (const std::string& remark : unwrap(llm.remarks())) {
               remarks.append(to_text(remark));
             }
             return remarks;
           })
      .def("clear_prefix_cache",
           [](LLM& llm) { return unwrap(without_gil([&] { return llm.clear_prefix_cache(); })); });
}

void bind_llm(nb::module_& module) {
  nb::class_<Stream>(module, "Stream")
      .def_prop_ro("request_id", [](const Stream& s) { return s.request_id().value; })
      .def("ready", &has_delta)
      .def("next", &next_delta)
      .def("output", [](const Stream& s) { return to_dict(s.output()); })
      .def("close", &Stream::close, nb::call_guard<WithoutGil>());

  nb::class_<LLM> llm(module, "LLM");
  llm.def_static("open", &open, nb::arg("model"), nb::arg("options"), nb::arg("progress").none())
      .def("generate", &generate, nb::arg("prompts"), nb::arg("params"), nb::arg("options"),
           nb::arg("progress").none())
      .def(
          "stream",
          [](LLM& llm, const Prompt& prompt, const nb::object& params,
             const RequestOptions& options) {
            const SamplingParams sampling = to_params(params);
            return unwrap(
                without_gil([&] { return llm.stream(prompt, sampling, options, &interrupted); }));
          },
          nb::arg("prompt"), nb::arg("params").none(), nb::arg("options"))
      .def("forward",
           [](LLM& llm, const std::vector<TokenId>& ids, bool reuse, bool all_rows,
              const RequestOptions& options) {
             return to_dict(unwrap(without_gil([&] {
               return llm.forward(ids, reuse ? ForwardReuse::kExact : ForwardReuse::kNone,
                                  all_rows ? ForwardRows::kAll : ForwardRows::kLast, &interrupted,
                                  options);
             })));
           })
      .def("kv_accuracy",
           [](LLM& llm, const Prompt& prompt, const std::string& kv_dtype) {
             return to_dict(unwrap(
                 without_gil([&] { return llm.kv_accuracy(prompt, kv_dtype, &interrupted); })));
           })
      .def("explain",
           [](const LLM& llm, const Prompt& prompt, const RequestOptions& options) {
             return to_list(unwrap(without_gil([&] { return llm.explain(prompt, options); })));
           })
      .def("tokenizer", [](const LLM& llm) { return unwrap(llm.tokenizer()); })
      .def("abort",
           [](LLM& llm, std::uint64_t id) {
             return unwrap(without_gil([&] { return llm.abort(RequestId{id}); }));
           })
      .def("close", &LLM::close, nb::call_guard<WithoutGil>());
  bind_operating(llm);
  bind_sessions(module, llm);
  bind_sequences(module, llm);
}

}  // namespace

// NOLINTNEXTLINE(cppcoreguidelines-pro-type-cstyle-cast): the cast is inside of the macro.
NB_MODULE(_quire, module) {
  // At the end of a program threads that Python does not wait for may hold anything.
  nb::set_leak_warnings(false);
  module.attr("__version__") = version();
  bind_errors();
  bind_waiting(module);
  bind_wakeups(module);
  bind_log(module);
  bind_params(module);
  bind_options(module);
  bind_tokenizer(module);
  bind_llm(module);
  bind_chunks(module);
  bind_contexts(module);
  bind_stores(module);
  module.attr("AUTO_BUDGET") = kAutoBudget;
  module.def("parse_bytes", [](const std::string& text) { return unwrap(parse_bytes(text)); });
  module.def("doctor_json", [] { return unwrap(without_gil([] { return doctor_json(); })); });
  module.def("inspect_json",
             [](const nb::bytes& model) { return unwrap(inspect_json(to_path(model))); });
}

}  // namespace quire::python
