/* SPDX-License-Identifier: Apache-2.0 */
/* Gives each file named as an argument to a target once, without libFuzzer: for tests, and for
 * other compilers. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int count, char **names) {
  for (int i = 1; i < count; i++) {
    FILE *file = fopen(names[i], "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
      perror(names[i]);
      return 1;
    }
    size_t size = (size_t)ftell(file);
    rewind(file);
    /* Of its very size, so that a read behind it is seen. */
    uint8_t *data = malloc(size ? size : 1);
    if (!data || fread(data, 1, size, file) != size)
      return 1;
    fclose(file);
    fprintf(stderr, "%s\n", names[i]);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
  }
  return 0;
}
