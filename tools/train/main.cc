#include "tools/train/train_tool.h"

int main(int argc, char** argv) {
  return tessera::train::TrainMain(argc, argv);
}
