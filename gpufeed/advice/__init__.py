"""What results let one predict and choose: settings of a loader, and changes to a pipeline."""
