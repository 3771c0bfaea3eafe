struct {{NAME}}_model {
  const unsigned char *weights;
  unsigned char *states;
  void *memory;
};

{{READER}}{{NAME}}_model *{{NAME}}_init({{PATH}}) {
  {{NAME}}_model *model = malloc(sizeof *model);
{{UNUSED}}  if (!model) return NULL;
  model->memory = malloc({{NBYTES}});
  if (!model->memory) { free(model); return NULL; }
  model->states = (unsigned char *)model->memory + {{ALIGNMENT}}
      - (uintptr_t)model->memory % {{ALIGNMENT}};
{{WEIGHTS}}{{STATES}}  return model;
}

{{RUN}}
  char *found = malloc({{ARENA}});
  if (!found) return 1;
  unsigned char *arena = (unsigned char *)found + {{ALIGNMENT}}
      - (uintptr_t)found % {{ALIGNMENT}};
  {{NAME}}_steps(model->weights, model->states, arena, {{GIVEN}});
  free(found);
  return 0;
}

void {{NAME}}_free({{NAME}}_model *model) {
  if (!model) return;
  free(model->memory);
  free(model);
}
