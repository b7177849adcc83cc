#include "quire/sequence.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "errors.h"
#include "outputs.h"
#include "params.h"
#include "paths.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/types.h"
#include "sequence.h"
#include "waiting.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

using Ids = std::vector<TokenId>;

nb::object logits(Sequence& sequence) {
  auto values = unwrap(without_gil([&] { return sequence.logits(&interrupted); }));
  const std::size_t vocab = values.size();
  return to_array(std::move(values), {vocab});
}

nb::dict diff(const Sequence& left, const Sequence& right) {
  const SequenceDiff diff = unwrap(without_gil([&] { return left.diff(right); }));
  nb::dict dict;
  dict["common_tokens"] = diff.common_tokens;
  dict["left"] = diff.left;
  dict["right"] = diff.right;
  dict["shared_blocks"] = diff.shared_blocks;
  return dict;
}

void bind_values(nb::module_& module) {
  nb::class_<BlockList>(module, "Blocks")
      .def(nb::init<>())
      .def_static(
          "join",
          [](const std::vector<BlockList>& lists) { return unwrap(BlockList::join(lists)); })
      .def("first", [](const BlockList& blocks, std::int64_t n) { return unwrap(blocks.first(n)); })
      .def_prop_ro("block_ids", &BlockList::block_ids)
      .def_prop_ro("num_tokens", &BlockList::num_tokens);

  nb::class_<Mark>(module, "Mark", "A moment of one sequence, from its checkpoint().")
      .def("__repr__", [](const Mark& mark) { return nb::str("Mark({})").format(mark.value); });
}

void bind_growing(nb::class_<Sequence>& sequence) {
  sequence
      .def("append",
           [](Sequence& sequence, const Ids& ids, const RequestOptions& options) {
             unwrap(without_gil([&] { return sequence.append(ids, &interrupted, options); }));
           })
      .def(
          "generate",
          [](Sequence& sequence, const nb::object& params, const RequestOptions& options) {
            const SamplingParams sampling = to_params(params);
            return to_dict(unwrap(
                without_gil([&] { return sequence.generate(sampling, &interrupted, options); })));
          },
          nb::arg("params").none(), nb::arg("options"))
      .def(
          "stream",
          [](Sequence& sequence, const nb::object& params, const RequestOptions& options) {
            const SamplingParams sampling = to_params(params);
            return unwrap(without_gil([&] { return sequence.stream(sampling, options); }));
          },
          nb::arg("params").none(), nb::arg("options"))
      .def("logits", &logits)
      .def("replace", [](Sequence& sequence, std::int64_t start, std::int64_t stop, const Ids& ids,
                         bool exact, const RequestOptions& options) {
        const EditMode mode = exact ? EditMode::kExact : EditMode::kApproximate;
        unwrap(without_gil(
            [&] { return sequence.replace(start, stop, ids, &interrupted, mode, options); }));
      });
}

void bind_moments(nb::class_<Sequence>& sequence) {
  sequence
      .def("fork",
           [](const Sequence& sequence) {
             return unwrap(without_gil([&] { return sequence.fork(); }));
           })
      .def("checkpoint",
           [](Sequence& sequence) {
             return unwrap(without_gil([&] { return sequence.checkpoint(); }));
           })
      .def("rollback",
           [](Sequence& sequence, const Mark& mark) {
             unwrap(without_gil([&] { return sequence.rollback(mark); }));
           })
      .def("rollback_to",
           [](Sequence& sequence, std::int64_t length) {
             unwrap(without_gil([&] { return sequence.rollback_to(length); }));
           })
      .def("commit",
           [](Sequence& sequence) { unwrap(without_gil([&] { return sequence.commit(); })); })
      .def("commit",
           [](Sequence& sequence, const Mark& mark) {
             unwrap(without_gil([&] { return sequence.commit(mark); }));
           })
      .def("diff", &diff)
      .def("close", &Sequence::close, nb::call_guard<WithoutGil>());
}

void bind_looking(nb::class_<Sequence>& sequence) {
  sequence.def("check_open", [](const Sequence& s) { unwrap(s.check_open()); })
      .def_prop_ro("tokens", &Sequence::tokens)
      .def_prop_ro("num_tokens", &Sequence::num_tokens)
      .def_prop_ro("owed_tokens", &Sequence::owed_tokens)
      .def_prop_ro("grade", [](const Sequence& s) { return reuse_grade_name(s.grade()); })
      .def("blocks",
           [](const Sequence& sequence) {
             return unwrap(without_gil([&] { return sequence.blocks(); }));
           })
      .def("save", [](const Sequence& sequence, const nb::bytes& path) {
        const std::string file = to_path(path);
        unwrap(without_gil([&] { return sequence.save(file); }));
      });
}

void bind_direct_inference(nb::class_<LLM>& llm) {
  llm.def("sequence",
          [](LLM& llm, const BlockList& existing, const Ids& ids, const RequestOptions& options) {
            return unwrap(
                without_gil([&] { return llm.sequence(existing, ids, &interrupted, options); }));
          })
      .def(
          "infer_from_blocks",
          [](LLM& llm, const BlockList& existing, const Ids& ids, const nb::object& params,
             const RequestOptions& options) {
            const SamplingParams sampling = to_params(params);
            return to_dict(unwrap(without_gil([&] {
              return llm.infer_from_blocks(existing, ids, sampling, &interrupted, options);
            })));
          },
          nb::arg("existing"), nb::arg("ids"), nb::arg("params").none(), nb::arg("options"))
      .def(
          "infer_from_blocks_stream",
          [](LLM& llm, const BlockList& existing, const Ids& ids, const nb::object& params,
             const RequestOptions& options) {
            const SamplingParams sampling = to_params(params);
            return unwrap(without_gil([&] {
              return llm.infer_from_blocks_stream(existing, ids, sampling, &interrupted, options);
            }));
          },
          nb::arg("existing"), nb::arg("ids"), nb::arg("params").none(), nb::arg("options"))
      .def("load_sequence",
           [](LLM& llm, const nb::bytes& path, bool wait, const RequestOptions& options) {
             const std::string file = to_path(path);
             return unwrap(without_gil(
                 [&] { return llm.load_sequence(file, {.wait = wait, .salt = options.salt}); }));
           })
      .def("find_blocks", [](const LLM& llm, const std::vector<std::int32_t>& block_ids,
                             std::int64_t num_tokens, const std::string& salt) {
        return unwrap(without_gil([&] { return llm.find_blocks(block_ids, num_tokens, salt); }));
      });
}

}  // namespace

void bind_sequences(nb::module_& module, nb::class_<LLM>& llm) {
  bind_values(module);
  nb::class_<Sequence> sequence(module, "Sequence");
  bind_growing(sequence);
  bind_moments(sequence);
  bind_looking(sequence);
  bind_direct_inference(llm);
}

}  // namespace quire::python
