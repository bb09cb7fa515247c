// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>

#include "deltaport/comm/session.hpp"

namespace deltaport {
namespace {

struct Environment {
  std::map<std::string, std::string> values;
  const char* operator()(const char* name) const {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  }
};

TEST(LaunchMismatch, NothingSaidIsFine) {
  EXPECT_EQ(launch_mismatch(1, Environment{}), "");
}

TEST(LaunchMismatch, SeveralRanksAreFine) {
  EXPECT_EQ(launch_mismatch(4, Environment{{{"SLURM_NTASKS", "4"}}}), "");
}

TEST(LaunchMismatch, NamesTheVariableAndItsValue) {
  for (const char* name : {"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const std::string text = launch_mismatch(1, Environment{{{name, "4"}}});
    EXPECT_NE(text.find(std::string(name) + "=4, but MPI sees 1 rank"), std::string::npos) << text;
  }
}

TEST(LaunchMismatch, OneTaskIsFine) {
  EXPECT_EQ(launch_mismatch(1, Environment{{{"SLURM_NTASKS", "1"}}}), "");
}

TEST(LaunchMismatch, CanBeAllowed) {
  EXPECT_EQ(launch_mismatch(1, Environment{{{"SLURM_NTASKS", "4"}, {"DELTAPORT_ALLOW_SINGLE_RANK", "1"}}}),
            "");
}

TEST(MpiInfo, DescribesTheLibrary) {
  const MpiInfo info = mpi_info();
  EXPECT_EQ(info.built_in, !info.library.empty());
  if (info.built_in) {
    EXPECT_EQ(info.thread_level, "not started");
    EXPECT_FALSE(info.standard.empty());
  }
}

}  // namespace
}  // namespace deltaport
