// Goal: a setting that is not what it should be is named, with what would be right.
// Method: environments as maps.

#include "client/bindings/ggml/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "client/grpc/default_addresses.h"

namespace ckv::ggml {
namespace {

using testing::HasSubstr;

absl::StatusOr<Settings> Read(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return ReadSettings(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      names);
}

TEST(GgmlSettings, Defaults) {
  const auto settings = Read({{"PATH", "/bin"}, {"CKV_REQUESTER", "x"}, {"CKV_GGML_CORPUS", ""}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->directory, kDefaultDirectoryAddress);
  EXPECT_EQ(settings->corpus, "");
  EXPECT_FALSE(settings->position.has_value());
  EXPECT_EQ(settings->policy, ContextPolicy::kAuto);
  EXPECT_EQ(settings->wire, PartialDtype::kF32);
  EXPECT_EQ(settings->timeout, std::chrono::seconds(10));
  EXPECT_EQ(settings->fabrics, (std::vector{FabricKind::kShm, FabricKind::kTcp}));
}

TEST(GgmlSettings, All) {
  const auto settings = Read({{"CKV_DIRECTORY", "[::1]:7"},
                              {"CKV_GGML_CORPUS", "docs"},
                              {"CKV_GGML_POSITION", "4096"},
                              {"CKV_GGML_TENANT", "acme"},
                              {"CKV_GGML_POLICY", "cache"},
                              {"CKV_GGML_LOCAL_CACHE_BYTES", "4GiB"},
                              {"CKV_GGML_TIMEOUT", "500ms"},
                              {"CKV_GGML_WIRE", "bf16"},
                              {"CKV_GGML_FABRICS", "tcp,verbs"},
                              {"CKV_GGML_VERBS_DEVICE", "mlx5_0"},
                              {"CKV_GGML_KERNEL_TARGET", "AVX3"}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->directory, "[::1]:7");
  EXPECT_EQ(settings->corpus, "docs");
  EXPECT_EQ(settings->position, 4096);
  EXPECT_EQ(settings->tenant, "acme");
  EXPECT_EQ(settings->policy, ContextPolicy::kCache);
  EXPECT_EQ(settings->local_cache_bytes, uint64_t{4} << 30);
  EXPECT_EQ(settings->timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(settings->wire, PartialDtype::kBf16);
  EXPECT_EQ(settings->fabrics, (std::vector{FabricKind::kTcp, FabricKind::kVerbs}));
  EXPECT_EQ(settings->verbs_device, "mlx5_0");
  EXPECT_EQ(settings->kernel_target, "AVX3");
}

TEST(GgmlSettings, NamesInvalidSettings) {
  const std::multimap<std::string, std::pair<std::string, std::string>> wrong = {
      {"CKV_DIRECTORY", {"host", "host:port"}},
      {"CKV_GGML_CORPUS", {"a b", "letters"}},
      {"CKV_GGML_POSITION", {"-1", "0 to"}},
      {"CKV_GGML_TENANT", {"a/b", "letters"}},
      {"CKV_GGML_POLICY", {"far", "auto, route or cache"}},
      {"CKV_GGML_LOCAL_CACHE_BYTES", {"much", "4GiB"}},
      {"CKV_GGML_TIMEOUT", {"0", "10s"}},
      {"CKV_GGML_WIRE", {"f16", "f32 or bf16"}},
      {"CKV_GGML_FABRICS", {"shm,udp", "shm, tcp and verbs"}},
      {"CKV_GGML_FABRICS", {"loopback", "shm, tcp and verbs"}},
      {"CKV_GGML_VERBS_DEVICE", {"a b", "letters"}},
      {"CKV_GGML_KERNEL_TARGET", {"a b", "letters"}}};
  for (const auto& [name, value_and_text] : wrong) {
    const auto settings = Read({{name, value_and_text.first}});
    ASSERT_TRUE(absl::IsInvalidArgument(settings.status())) << name;
    EXPECT_THAT(settings.status().message(), HasSubstr(name + " is '" + value_and_text.first));
    EXPECT_THAT(settings.status().message(), HasSubstr(value_and_text.second));
  }
  const auto mistyped = Read({{"CKV_GGML_CORPSE", "docs"}});
  EXPECT_THAT(mistyped.status().message(), HasSubstr("did you mean CKV_GGML_CORPUS?"));
  const auto alone = Read({{"CKV_GGML_POSITION", "5"}});
  EXPECT_THAT(alone.status().message(), HasSubstr("CKV_GGML_CORPUS is not"));
}

}  // namespace
}  // namespace ckv::ggml
