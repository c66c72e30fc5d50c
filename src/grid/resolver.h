// How resolve() works on one row: the rules of a profile, applied in the order in which a server meets them. Parts:
//   resolver.cpp            what refuses a row, and what the engine is told
//   resolve.cpp             the order of the steps; cache, RoPE, engine, memory
//   resolve_attention.cpp   attention backends: layout, architecture, limits
//   resolve_products.cpp    FP4 products, MoE runners, the shared expert
#pragma once

#include <array>

#include "grid/resolve.h"

namespace faultline {

inline constexpr std::string_view kNoEffect = "-";
inline std::string on_off(bool value) {
  return value ? "on" : "off";
}

// In which order a server meets its reasons not to run a row: the first one is reported. That this build lacks a kernel
// comes after all that the server itself would say.
enum class Stage : uint8_t { kStart, kMissing, kFirstUse, kNotBuilt, kLayout, kNone };

class Resolver {
 public:
  Resolver(const AxisValues& requested, const Profile& profile, const Target& target, const ShapeInfo& shape);
  ResolvedConfiguration run();

 private:
  const std::string& asked(std::string_view axis) const { return result_.requested.find(std::string(axis))->second; }
  std::string asked_or_default(std::string_view axis) const;  // one of defaults_of()
  int64_t number(std::string_view axis) const;                // 0 where the row leaves it to others
  int64_t heads() const;                                      // of one rank
  int64_t prefill_launch() const;                             // tokens
  int64_t decode_batch() const;                               // requests

  std::string& effect(std::string_view key) { return result_.resolved[std::string(key)]; }
  void note(std::string text) { result_.notes.push_back(std::move(text)); }

  // Keeps the first reason in the server's order. Missing kernels are listed together: each has to be solved.
  void refuse(Stage stage, TargetStatus status, std::string reason, std::string source);
  void guard(Stage stage, std::string reason, std::string source);
  void guard(Stage stage, const Cited& rule) { guard(stage, rule.text, rule.source); }
  void missing(std::string reason, std::string source);
  void not_built(std::string reason, std::string source = "");

  // What was asked for, or nothing.
  void require(std::string_view axis, std::string_view key, const std::string& value);
  // What the server does, or the nearest that the engine can.
  void prefer(std::string_view key, const std::string& wanted, const std::string& nearest, const Cited& rule,
              std::string_view who);
  // The nearest, and why the row has it although the server does `rule`.
  void approximate(std::string_view key, const std::string& nearest, const Cited& rule, std::string_view who);

  void check_choices();
  void choose_cache();
  void choose_nsa_backends();
  void choose_sampling();
  void choose_rope();
  void choose_engine();
  void choose_scales();
  void check_memory();
  void choose_rest();

  void choose_attention();
  void choose_sparse();
  std::string auto_prefill() const;
  void choose_dense(const std::string& backend);
  void use(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase);
  void check_cache(const std::string& value, const Backend& backend, AttentionPhase phase);
  void check_kernel(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase);
  void check_architecture(std::string_view axis, const std::string& value, const Backend& backend);
  void check_limits(std::string_view axis, const std::string& value, const Backend& backend, AttentionPhase phase);
  void check_padding();
  void check_indexer();
  void check_sparse_mla();

  void choose_products();
  void product(std::string_view axis, const std::string& value, const std::vector<std::string>& w4a4,
               std::string_view key, std::array<std::string_view, 2> kinds);
  std::string runner_for(const std::string& asked_for);
  void check_runner(const std::string& experts);
  void runner_setting(std::string_view key, const std::string& wanted, const std::string& model, const Cited& rule,
                      const std::string& experts);
  void choose_shared_experts();

  const Profile& profile_;
  const Target& target_;
  const ShapeInfo& shape_;
  ResolvedConfiguration result_;
  Stage stage_ = Stage::kNone;
  bool reference_ = false;
  std::string kv_;
  Format kv_format_ = Format::kKvBf16;
  bool quantizes_query_ = false;
  std::string approximations_;
  std::string nsa_prefill_;
  std::string nsa_decode_;
};

}  // namespace faultline
