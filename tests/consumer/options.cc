// Options as callers write them: the fields that they mean, by name. Compiled with the warnings
// that many projects make errors; never run.
#include <quire/quire.h>

inline const quire::LLMOptions kLLM{.threads = 1};
inline const quire::RequestOptions kRequest{.session = "s"};
inline const quire::SamplingParams kSampling{.temperature = 0, .max_tokens = 8};
inline const quire::SessionRetention kSession{.priority = 1};
inline const quire::LoadSequenceOptions kLoading{.wait = false};
inline const quire::ChunkCacheOptions kChunks{.max_chunks = 4};
inline const quire::ChunkFormat kFormat{.context = {.prefix = "<doc>"}};
inline const quire::ChunkOptions kChunk{.pinned = true};
inline const quire::ChunkContent kContent{.type = quire::ChunkType::kQuery};
inline const quire::ChunkUpdate kUpdate{.pinned = true};
inline const quire::CompositionSpec kSpec{.query_chunk_id = "q", .blend = {.share = 0.5}};
inline const quire::ContextOptions kContext{.max_host_bytes = 1};
inline const quire::ItemOptions kItem{.active = false, .retention = {.pinned = true}};
inline const quire::ItemRetention kRetention{.pinned = true};
inline const quire::CheckpointOptions kCheckpoints{.keep = 2};
inline const quire::StoreOptions kStore{.read_only = true};
